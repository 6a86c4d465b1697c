"""python -m pipeloom.metadata"""
import sys

from pipeloom.metadata.command import main

if __name__ == "__main__":
    sys.exit(main())

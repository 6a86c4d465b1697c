"""pipeloom.metadata: sizes from headers of real and of damaged files, every
kind of source, choice of samples, several processes, interruption, and that
the `pipeloom` program reads what is written. The tests are in metadata/."""
import os
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "metadata"))
sys.path.insert(0, os.path.join(HERE, "../../python"))

from command_tests import *  # noqa: E402,F401,F403
from header_tests import *  # noqa: E402,F401,F403
from source_tests import *  # noqa: E402,F401,F403

if __name__ == "__main__":
    unittest.main()

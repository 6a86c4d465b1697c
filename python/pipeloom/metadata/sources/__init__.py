"""Data sets on disk, each as units of samples."""

"""Sizes from the headers of images, videos and audio files."""

"""What keeps the files, trackers and services of a script out of reach while it is measured."""

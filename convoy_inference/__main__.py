"""Runs the command `convoy` as `python -m convoy_inference`."""

from service.cli import main

if __name__ == "__main__":
    main()

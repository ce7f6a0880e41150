"""`python -m sublaplace_cli`."""

from .app import main

if __name__ == "__main__":
    main()

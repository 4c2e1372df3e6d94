"""`python -m gpuscale` is the same as the `gpuscale` command."""

from gpuscale.cli import main

if __name__ == "__main__":
    main()

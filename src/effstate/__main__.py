"""``python -m effstate`` is the ``effstate`` command."""

from effstate.cli import main

main()

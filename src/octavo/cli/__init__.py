"""The ``octavo`` command. Parsing and ``--help`` need the standard library only; a command imports what it uses."""

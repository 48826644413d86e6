"""``python -m octavo``: the same as the ``octavo`` command."""

import sys

from octavo.cli.main import main

sys.exit(main())

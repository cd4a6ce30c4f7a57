"""`python -m scaleproof`: the command line."""

import sys

from scaleproof.commands.main import main

sys.exit(main())

"""`python -m examples.django_orders.manage`: Django's own commands, and `run_jobs`."""

import os
import sys

from django.core.management import execute_from_command_line

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "examples.django_orders.settings")
    execute_from_command_line(sys.argv)

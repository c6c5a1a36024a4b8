"""The dozen operations every backend provides: ``contract.py`` says what they mean, ``reference.py`` shows it."""

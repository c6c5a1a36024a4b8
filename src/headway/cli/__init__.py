"""The command line: one file a command. The only place that reads the environment."""


def main() -> None:
    from headway.cli.app import app

    app()

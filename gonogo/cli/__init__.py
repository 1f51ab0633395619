"""The command line and the REST client: `gonogo --help`."""

"""Training programs under test. The suite knows them by their command line and the probe alone."""

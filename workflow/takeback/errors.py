"""The errors that a user can cause. Their text is one line that names the cause and the cure."""


class TakebackError(RuntimeError):
    """Printed as one line, without a traceback; exit status 1."""


class ExperimentError(TakebackError):
    """A mistake in an experiment file: names file, key and what is allowed."""


class EvidenceError(TakebackError):
    """Evidence that can't be read or written: names the file and what is wrong."""


class SlurmError(TakebackError):
    """No Slurm of one's own can be had, or it has refused something: with its own words."""

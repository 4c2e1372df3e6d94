"""The subject of `explain`'s questions: one plan (`gpuscale.launch.subject`)."""

from gpuscale.launch.subject import Subject, read_subject, subject_of

__all__ = ["Subject", "read_subject", "subject_of"]

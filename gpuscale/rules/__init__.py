"""Which candidates are legal, and a reason code for each that is not."""

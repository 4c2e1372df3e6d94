"""The frameworks: for each its own rules, what it lacks, and where its source says so."""

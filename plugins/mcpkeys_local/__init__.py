"""Local KEK file and file store: the embedded default, nothing to install, nothing to run."""

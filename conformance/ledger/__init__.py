"""Known deviations of subjects, as data: a TOML file for each, which `core.ledger_text` reads."""

"""What a generation decides: the rules, its state machine, what is worth drafting. Pure."""

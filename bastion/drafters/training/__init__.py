"""Training a DFlash drafter for any causal target: prompts -> answers and features -> drafter."""

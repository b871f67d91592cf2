"""The doctor: why a pair's acceptance is low, by undoing one suspected fault at a time and measuring tau."""

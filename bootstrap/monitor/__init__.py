"""The run as an operator's node sees it, made of what peers sign and of what they say of themselves."""

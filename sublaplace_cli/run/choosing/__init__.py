"""What posteriors are over: the parameters that a method chooses (`selections`), or features (`features`)."""

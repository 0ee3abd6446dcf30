"""Every kernel there is: all cases, all compiled."""

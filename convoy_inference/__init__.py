"""Contains all other packages of Convoy in an installed wheel. `setup.py` moves them into this
package."""

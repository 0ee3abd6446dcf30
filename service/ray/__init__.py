"""Contains Convoy's application for Ray Serve; `deploy/ray/README.md` describes it."""

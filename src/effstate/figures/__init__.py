"""Figures: a registry, one style, general panels, and modules that compose panels into figures."""

"""The magics ``%breakeven`` and ``%%breakeven`` of IPython, Jupyter, Colab and Kaggle."""

from breakeven.notebook.magics import load_ipython_extension as load_ipython_extension

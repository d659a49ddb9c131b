"""The notebooks: which are shipped, a learner's copies of them, and opening one in JupyterLab.

Building them from their sources is :mod:`llmlab.labs.build`, a command of the repository.
"""

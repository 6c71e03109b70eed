"""The reference of the package, by Sphinx from signatures and docstrings: sdk/python/run reference."""

import toolyard

project = "toolyard"
author = copyright = "The authors of Toolyard"
release = toolyard.__version__
extensions = ["sphinx.ext.autodoc"]
html_theme = "alabaster"
html_theme_options = {"description": "Tools for AI agents in Python"}
html_show_sphinx = html_show_copyright = False

# What has no docstring is missing from the reference, and every reference must lead somewhere.
nitpicky = True
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
# The adapters import their frameworks, which are not installed here.
autodoc_mock_imports = ["agents", "anthropic", "google", "langchain", "langchain_core", "langgraph", "llama_index"]
autodoc_mock_imports += ["openai", "pydantic_ai"]
# Only what belongs to the package is a part of its reference; type variables and what adapters share are not.
nitpick_ignore_regex = [(r"py:.*", r"(?!toolyard\b).*|toolyard\.\w+\.[A-Z]|toolyard\.adapters\._calls\..*")]

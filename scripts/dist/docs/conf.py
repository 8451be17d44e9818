"""The settings of the documentation's site. docs.py lays out the pages that Sphinx reads."""

import os

project = "Coppice"
version = release = os.environ["COPPICE_VERSION"]
html_title = f"Coppice {version}"

extensions = ["myst_parser"]
root_doc = "index"
source_suffix = {".md": "markdown"}
language = "en"
smartquotes = False

# The pages are written for GitHub: nothing in them is a role, a target or a comment of MyST.
myst_disable_syntax = ["myst_role", "myst_target", "myst_block_break", "myst_line_comment", "dollarmath"]
myst_heading_anchors = 6

html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["coppice.css"]
html_favicon = "static/coppice.svg"
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_show_copyright = False
html_use_index = False
html_domain_indices = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#2c6e3f", "color-brand-content": "#2c6e3f"},
    "dark_css_variables": {"color-brand-primary": "#7fc792", "color-brand-content": "#7fc792"},
}
# Sphinx's lexer of Java does not know records and text blocks.
suppress_warnings = ["misc.highlighting_failure"]
pygments_style = "friendly"
pygments_dark_style = "github-dark"

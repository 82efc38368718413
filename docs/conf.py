"""Sphinx's configuration: ``make site`` builds the pages, the notebooks and the API's reference into build/site.

The root of the tree is the source folder, so that relative links lead to the same places as on a repository's pages.
"""

import os
import re
from importlib import import_module
from pathlib import Path

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging
from sphinx.writers.html5 import HTML5Translator

import vkrnn

os.environ.setdefault("KERAS_BACKEND", "torch")  # read when Keras is imported

# What is public: the names in ``__all__`` of these.
MODULES = (
    *("vkrnn", "vkrnn.reference", "vkrnn.mpsgraph", "vkrnn.convert"),
    *("vkrnn.torch", "vkrnn.onnx", "vkrnn.jax", "vkrnn.keras"),
)

project = "vkrnn"
release = vkrnn.__version__
html_title = f"{project} {release}"
html_theme = "furo"
html_show_copyright = False
html_static_path = ["static"]
html_css_files = ["wide.css"]

root_doc = "docs/index"
include_patterns = ["docs/**", "notebooks/*.ipynb", "CONTRIBUTING.md", "CHANGELOG.md", "bench/**.md"]
exclude_patterns = [".*", "build", "dist"]
extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.viewcode",
    "numpydoc",
    "myst_nb",
    "sphinx_copybutton",
]

copybutton_prompt_text = r">>> |\.\.\. "  # what is copied: the lines with prompts, without these
copybutton_prompt_is_regexp = True
copybutton_selector = "div.highlight pre:not(.cell_output pre)"

nb_execution_mode = "off"  # they are committed with their outputs
nb_merge_streams = True
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3

default_role = "py:obj"  # what docstrings have in single backquotes, if there is such a name
autodoc_typehints = "none"  # the sections of the docstrings say more
autodoc_member_order = "bysource"
autodoc_default_options = {"no-value": True}
maximum_signature_line_length = 88
numpydoc_show_class_members = False


def require_public_names(_app: Sphinx, environment: BuildEnvironment) -> None:
    """Warn, which fails the build, of public names that no page describes."""
    described = set(environment.get_domain("py").objects)
    for module in MODULES:
        for name in import_module(module).__all__:
            if f"{module}.{name}" not in described:
                logging.getLogger(__name__).warning("%s.%s is public, and no page describes it", module, name)


def lead_from_docs(_app: Sphinx, _path: Path, _page: str, content: list[str]) -> None:
    """Have the relative links of README.md lead to the same places from docs/index.md, which includes it."""
    content[0] = re.sub(r"\]\((?=\w)(?!\w+:)", "](../", content[0])


def lead_to_start(app: Sphinx, _error: Exception | None) -> None:
    """Have the folder itself open the start page."""
    (Path(app.outdir) / "index.html").write_text(f'<meta http-equiv="refresh" content="0; url={root_doc}.html">\n')


def write_inline(translator: HTML5Translator, node: nodes.math) -> None:
    """Write an equation as MathML, which browsers draw by themselves: no script is loaded from elsewhere."""
    translator.body.append(convert(node.astext()))
    raise nodes.SkipNode


def write_block(translator: HTML5Translator, node: nodes.math_block) -> None:
    """Write an equation between paragraphs likewise."""
    translator.body.append(convert(node.astext(), display="block"))
    raise nodes.SkipNode


def setup(app: Sphinx) -> None:
    """Register what is above."""
    app.add_html_math_renderer("mathml", (write_inline, None), (write_block, None))
    app.connect("include-read", lead_from_docs)
    app.connect("env-check-consistency", require_public_names)
    app.connect("build-finished", lead_to_start)

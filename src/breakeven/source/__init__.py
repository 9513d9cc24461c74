"""Python source, parsed once: nodes, names and scopes, data flow, and line edits.

Rules and changes of scripts use these to query the source.
"""

from breakeven.source.files import SourceFile as SourceFile
from breakeven.source.files import Sources as Sources
from breakeven.source.files import SyntaxTree as SyntaxTree
from breakeven.source.line_edits import LineEdits as LineEdits
from breakeven.source.line_edits import NoEditError as NoEditError
from breakeven.source.line_edits import split_lines as split_lines
from breakeven.source.names import all_identifiers as all_identifiers
from breakeven.source.names import declared_names as declared_names
from breakeven.source.names import free_name as free_name
from breakeven.source.names import mentions as mentions
from breakeven.source.names import reached_by as reached_by
from breakeven.source.names import read_names as read_names
from breakeven.source.names import reads_in_scope as reads_in_scope
from breakeven.source.names import substituted as substituted
from breakeven.source.names import used_names as used_names
from breakeven.source.names import with_values as with_values
from breakeven.source.names import written_names as written_names
from breakeven.source.names import written_part as written_part
from breakeven.source.nodes import COMPREHENSIONS as COMPREHENSIONS
from breakeven.source.nodes import DEFINITIONS as DEFINITIONS
from breakeven.source.nodes import LOOP_STATEMENTS as LOOP_STATEMENTS
from breakeven.source.nodes import Function as Function
from breakeven.source.nodes import Loop as Loop
from breakeven.source.nodes import arguments_of as arguments_of
from breakeven.source.nodes import blocks_of as blocks_of
from breakeven.source.nodes import dotted_name as dotted_name
from breakeven.source.nodes import headers_of as headers_of
from breakeven.source.nodes import is_constant as is_constant
from breakeven.source.nodes import is_named as is_named
from breakeven.source.nodes import keyword as keyword
from breakeven.source.nodes import last_name as last_name
from breakeven.source.nodes import lines_of as lines_of
from breakeven.source.nodes import methods_of as methods_of
from breakeven.source.nodes import nodes_in as nodes_in
from breakeven.source.nodes import own_nodes as own_nodes
from breakeven.source.nodes import parameters_of as parameters_of
from breakeven.source.nodes import plain_name as plain_name
from breakeven.source.nodes import spans as spans
from breakeven.source.nodes import statements_of as statements_of
from breakeven.source.nodes import text_of as text_of
from breakeven.source.notebook import CONVERT as CONVERT
from breakeven.source.notebook import Notebook as Notebook
from breakeven.source.notebook import can_parse as can_parse
from breakeven.source.notebook import notebook_of as notebook_of
from breakeven.source.notebook import read_notebook as read_notebook

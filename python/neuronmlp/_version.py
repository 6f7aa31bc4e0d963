"""The version of this package, which is that of the library it was made for (CMakeLists.txt; a test compares them)."""

__version__ = "0.2.0"

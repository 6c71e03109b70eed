//! Linker arguments of an extension module, which macOS needs: Python's symbols are those of the program that loads it.

fn main() {
    pyo3_build_config::add_extension_module_link_args();
}

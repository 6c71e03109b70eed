//! The attribute that makes a tool of a plain function. It is documented and used as `toolyard_tool::tool`.

mod expand;
mod function;
mod options;

use proc_macro::TokenStream;
use syn::{ItemFn, parse_macro_input};

use crate::function::Function;
use crate::options::Options;

/// See `toolyard_tool::tool`.
#[proc_macro_attribute]
pub fn tool(options: TokenStream, item: TokenStream) -> TokenStream {
    let options = parse_macro_input!(options as Options);
    let item = parse_macro_input!(item as ItemFn);
    // The function is kept even if it cannot become a tool, so that its callers still compile.
    let function = function::plain(&item);
    let tool = match Function::read(&item, &options) {
        Ok(read) => expand::tool(&read, &options),
        Err(error) => error.to_compile_error(),
    };
    quote::quote!(#function #tool).into()
}

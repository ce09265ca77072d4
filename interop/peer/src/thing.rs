//! What commands made, by the names that they gave it.

use std::collections::HashMap;
use urxe_verbs::{Ah, Cq, Mr, Mw, Qp, Srq};

macro_rules! things {
    ($($kind:ident: $add:ident, $find:ident;)*) => {
        enum Thing {
            $($kind($kind),)*
        }

        impl Things {
            $(
                pub(crate) fn $add(&mut self, name: String, thing: $kind) {
                    self.0.insert(name, Thing::$kind(thing));
                }

                pub(crate) fn $find(&self, name: &str) -> Result<&$kind, String> {
                    match self.0.get(name) {
                        Some(Thing::$kind(thing)) => Ok(thing),
                        _ => Err(format!("{name} is no {}", stringify!($kind))),
                    }
                }
            )*
        }
    };
}

#[derive(Default)]
pub(crate) struct Things(HashMap<String, Thing>);

things! {
    Ah: add_ah, ah;
    Cq: add_cq, cq;
    Mr: add_mr, mr;
    Mw: add_mw, mw;
    Qp: add_qp, qp;
    Srq: add_srq, srq;
}

impl Things {
    /// Destroys them in this order; what is not there is no error.
    pub(crate) fn close(&mut self, names: &[String]) {
        for name in names {
            self.0.remove(name);
        }
    }
}

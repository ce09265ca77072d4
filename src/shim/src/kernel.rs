//! How structures of the kernel's user ABI are written down, and held against its headers.

/// Defines structures of the kernel: ours, the kernel's name, its size, its fields. Names of fields
/// are the kernel's, so that a test can ask the C compiler about every size and offset. Everything
/// is in the machine's own byte order, except what is an array of bytes.
macro_rules! kernel_structs {
    ($(
        $(#[$doc:meta])*
        $name:ident = $theirs:ident ($size:literal) { $($field:ident: $type:ty,)* }
    )*) => {
        $(
            $(#[$doc])*
            #[repr(C)]
            #[derive(
                Clone, Copy, Debug, PartialEq, Eq,
                zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::KnownLayout,
                zerocopy::Immutable,
            )]
            pub(crate) struct $name {
                $(pub(crate) $field: $type,)*
            }
            const _: () = assert!(size_of::<$name>() == $size);

            impl Default for $name {
                fn default() -> Self {
                    zerocopy::FromZeros::new_zeroed()
                }
            }
        )*

        /// Each structure's name and size, and its fields' names and offsets.
        #[cfg(test)]
        pub(crate) const LAYOUTS: &[crate::kernel::Layout] = &[$((
            stringify!($theirs),
            size_of::<$name>(),
            &[$((stringify!($field), std::mem::offset_of!($name, $field)),)*],
        ),)*];
    };
}
pub(crate) use kernel_structs;

/// Defines a module of numbers of the kernel, with its names, so that a test can ask the C
/// compiler. What has no type is a `u16`.
macro_rules! kernel_numbers {
    (@type) => { u16 };
    (@type $type:ty) => { $type };
    (
        $(#[$doc:meta])*
        $module:ident { $($name:ident $(: $type:ty)? = $theirs:ident $value:literal,)* }
    ) => {
        $(#[$doc])*
        pub(crate) mod $module {
            $(
                pub(crate) const $name: $crate::kernel::kernel_numbers!(@type $($type)?) = $value;
            )*

            /// Their names in C, and their values.
            #[cfg(test)]
            pub(crate) const ALL: &[(&str, usize)] = &[$((stringify!($theirs), $value),)*];
        }
    };
}
pub(crate) use kernel_numbers;

/// A structure's name and size, and its fields' names and offsets.
#[cfg(test)]
pub(crate) type Layout = (&'static str, usize, &'static [(&'static str, usize)]);

/// Has the C compiler compare layouts, and the values of other expressions of C, with what the
/// headers of the directory `rdma` say.
#[cfg(test)]
pub(crate) fn check_headers<'a>(
    headers: &[&str],
    layouts: impl IntoIterator<Item = &'a Layout>,
    numbers: impl IntoIterator<Item = (&'a str, usize)>,
) {
    use std::fmt::Write as _;
    use std::path::Path;
    use urxe_shell::testing::{assert_compiles, could_not_run};

    let mut c =
        String::from("#include <stddef.h>\n#include <linux/in.h>\n#include <linux/in6.h>\n");
    for header in headers {
        if !Path::new("/usr/include/rdma").join(header).exists() {
            return could_not_run(&format!("no rdma/{header} (package linux-libc-dev)"));
        }
        writeln!(c, "#include <rdma/{header}>").unwrap();
    }
    let mut says = |what: &str, value: usize| {
        writeln!(c, "_Static_assert({what} == {value}, \"{what}\");").unwrap();
    };
    for (name, size, fields) in layouts {
        says(&format!("sizeof(struct {name})"), *size);
        for (field, offset) in *fields {
            let field = field.trim_start_matches("r#");
            says(&format!("offsetof(struct {name}, {field})"), *offset);
        }
    }
    for (name, value) in numbers {
        says(name, value);
    }
    assert_compiles(&c);
}

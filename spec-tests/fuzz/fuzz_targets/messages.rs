#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| urxe_spec_tests::fuzz::messages::run(bytes));

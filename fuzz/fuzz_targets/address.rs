//! `host:port`: an address that is read and written again is the same.
#![no_main]

use trainit_rules::cluster::parse::address::Address;

libfuzzer_sys::fuzz_target!(|text: &str| {
    if let Ok(address) = Address::parse(text) {
        assert_eq!(Address::parse(&address.to_string()), Ok(address));
    }
});

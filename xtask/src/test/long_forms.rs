//! Tests that can run for longer, and how much more they do then.

/// A test that is worth running for longer than everyone's patience.
pub(super) struct LongForm {
    pub(super) name: &'static str,
    pub(super) package: &'static str,
    pub(super) test: &'static str,
    /// How much more, as the test reads it.
    pub(super) amount: (&'static str, &'static str),
}

pub(super) const LONG_FORMS: [LongForm; 14] = [
    LongForm {
        name: "torture, 10^8 operations",
        package: "bindery-space",
        test: "torture",
        amount: ("BINDERY_TORTURE_OPERATIONS", "100000000"),
    },
    LongForm {
        name: "the dirty tree, 10^9 marks",
        package: "bindery-dirty",
        test: "stress",
        amount: ("BINDERY_DIRTY_OPERATIONS", "1000000000"),
    },
    LongForm {
        name: "40,000 lives of logs and MDCs, six crashes each",
        package: "bindery-pool",
        test: "crashes",
        amount: ("BINDERY_POOL_LIVES", "20000"),
    },
    LongForm {
        name: "20,000 lives of pools, with up to four crashes each",
        package: "bindery-pool",
        test: "pools",
        amount: ("BINDERY_POOL_LIVES", "20000"),
    },
    LongForm {
        name: "20,000 lives of pools whose objects go to an archive and back",
        package: "bindery-pool",
        test: "moving",
        amount: ("BINDERY_POOL_LIVES", "20000"),
    },
    LongForm {
        name: "500 processes killed while they write to a pool",
        package: "bindery-pool",
        test: "processes",
        amount: ("BINDERY_POOL_KILLS", "500"),
    },
    LongForm {
        name: "real guests, 200 rounds",
        package: "bindery-cli",
        test: "fire_guests",
        amount: ("BINDERY_GUEST_ROUNDS", "200"),
    },
    LongForm {
        name: "200 daemons killed, 200 connections cut",
        package: "bindery-cli",
        test: "fire_kills",
        amount: ("BINDERY_DAEMON_KILLS", "200"),
    },
    LongForm {
        name: "huge pages always, where asked for and never, 40 daemons killed in each",
        package: "bindery-cli",
        test: "fire_huge_pages",
        amount: ("BINDERY_HUGE_PAGES_KILLS", "40"),
    },
    LongForm {
        name: "KVM guests, 50 rounds",
        package: "bindery-cli",
        test: "fire_kvm",
        amount: ("BINDERY_KVM_ROUNDS", "50"),
    },
    LongForm {
        name: "strangers on the socket, five minutes",
        package: "bindery-cli",
        test: "hostile",
        amount: ("BINDERY_HOSTILE_SECONDS", "300"),
    },
    LongForm {
        name: "HTTP while merging at full rate, a minute",
        package: "bindery-cli",
        test: "http_load",
        amount: ("BINDERY_HTTP_SECONDS", "60"),
    },
    LongForm {
        name: "the shim's storm, ten minutes",
        package: "bindery-shim",
        test: "hooks",
        amount: ("STORM_SECONDS", "600"),
    },
    LongForm {
        name: "10^6 operations on memory, with Bindery and without",
        package: "bindery-testkit",
        test: "differential",
        amount: ("BINDERY_DIFFERENTIAL_OPERATIONS", "1000000"),
    },
];

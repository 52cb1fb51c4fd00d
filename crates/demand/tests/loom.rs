//! A published value that is read and replaced, under every interleaving.
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p bindery-demand --test loom --release
//! ```
//!
//! A pass is not a proof: loom bounds preemptions here.

#![cfg(loom)]
#![allow(clippy::unwrap_used, reason = "what a test does not expect fails it")]

use std::sync::Mutex;

use bindery_demand::published::Published;
use loom::sync::Arc;
use loom::thread;

/// Flags of the values that live. Not loom's, so that it adds no interleavings.
type Alive = std::sync::Arc<Mutex<Vec<bool>>>;

struct Value {
    number: usize,
    alive: Alive,
}

impl Value {
    fn new(number: usize, alive: &Alive) -> Self {
        alive.lock().unwrap()[number] = true;
        Self { number, alive: Alive::clone(alive) }
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        self.alive.lock().unwrap()[self.number] = false;
    }
}

fn look(published: &Published<Value>, alive: &Alive) {
    published.read(|value| {
        let Some(number) = value.map(|value| value.number) else { return };
        thread::yield_now();
        assert!(alive.lock().unwrap()[number], "value {number} was dropped while it was read");
    });
}

fn model(body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(body);
}

#[test]
fn nothing_is_dropped_while_it_is_read() {
    model(|| {
        let alive: Alive = std::sync::Arc::new(Mutex::new(vec![false; 3]));
        let published = Arc::new(Published::default());
        published.update(|_| Some(Value::new(0, &alive)));
        let (theirs, seen) = (Arc::clone(&published), Alive::clone(&alive));
        let reader = thread::spawn(move || look(&theirs, &seen));
        published.update(|_| Some(Value::new(1, &alive)));
        published.update(|_| Some(Value::new(2, &alive)));
        reader.join().unwrap();
        assert_eq!(*alive.lock().unwrap(), [false, false, true]);
    });
}

#[test]
fn two_writers_wait_for_one_reader() {
    model(|| {
        let alive: Alive = std::sync::Arc::new(Mutex::new(vec![false; 3]));
        let published = Arc::new(Published::default());
        published.update(|_| Some(Value::new(0, &alive)));
        let (theirs, seen) = (Arc::clone(&published), Alive::clone(&alive));
        let reader = thread::spawn(move || look(&theirs, &seen));
        let (other, to_other) = (Arc::clone(&published), Alive::clone(&alive));
        let writer = thread::spawn(move || other.update(|_| Some(Value::new(1, &to_other))));
        published.update(|_| Some(Value::new(2, &alive)));
        reader.join().unwrap();
        writer.join().unwrap();
    });
}

//! Layers of a disk that can be merged once their checkpoints are gone.
//!
//! A disk is a chain of images, each over the one below. A checkpoint keeps the view at one layer: that image over all
//! below it. The view at the topmost is the disk itself. Where several layers lie on each other whose views nobody
//! needs, the lowest of them takes what the others have: the view at the last one, and all above, stay as they are.

use std::ops::RangeInclusive;

/// Layer of a disk's chain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Layer {
    /// True for an overlay that was made for a checkpoint of this guest: no other file is written to or removed.
    pub(super) is_own: bool,
    /// True if a checkpoint keeps the view at this layer.
    pub(super) is_kept: bool,
    /// True if images of other guests, running or not, stand on this layer.
    pub(super) is_shared: bool,
}

/// Returns the layers to merge, as runs of a chain from its lowest layer on: of each run the lowest layer takes the
/// others, which go. The topmost layer, which a guest writes to, is in none.
pub(super) fn merges(chain: &[Layer]) -> Vec<RangeInclusive<usize>> {
    let Some(top) = chain.len().checked_sub(1) else { return Vec::new() };
    // What others stand on they have open down to the lowest layer. Of a layer that was not made for a checkpoint here
    // (by a fork, for another pool, by somebody else) it is not known who stands below it, too.
    let is_fixed = |layer: &Layer| layer.is_shared || !layer.is_own;
    let shared = chain.iter().rposition(is_fixed).map_or(0, |at| at + 1);
    let (mut runs, mut first) = (Vec::new(), None);
    for (at, Layer { is_own, is_kept, .. }) in chain.iter().enumerate().skip(shared) {
        let is_free = *is_own && !is_kept && at < top;
        match (first, is_free) {
            (None, true) => first = Some(at),
            (Some(begun), false) => {
                if at - begun > 1 {
                    runs.push(begun..=at - 1);
                }
                first = None;
            }
            _ => {}
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CLUSTERS: usize = 6;

    /// Image of a model: what it has of each cluster.
    type Image = [Option<u32>; CLUSTERS];

    /// Returns what is read at a layer.
    fn view(chain: &[Image], at: usize) -> Image {
        std::array::from_fn(|cluster| chain[..=at].iter().rev().find_map(|image| image[cluster]))
    }

    /// Merges as a VMM does.
    fn merge(chain: &mut Vec<Image>, layers: &mut Vec<Layer>, run: &RangeInclusive<usize>) {
        for at in run.start() + 1..=*run.end() {
            let image = chain[at];
            for (below, above) in chain[*run.start()].iter_mut().zip(image) {
                *below = above.or(*below);
            }
        }
        chain.drain(run.start() + 1..=*run.end());
        layers.drain(run.start() + 1..=*run.end());
    }

    fn layer() -> impl Strategy<Value = (Layer, Image)> {
        let layer =
            (prop::bool::weighted(0.9), prop::bool::weighted(0.4), prop::bool::weighted(0.1));
        let layer =
            layer.prop_map(|(is_own, is_kept, is_shared)| Layer { is_own, is_kept, is_shared });
        (layer, prop::array::uniform6(prop::option::of(any::<u32>())))
    }

    proptest! {
        /// Views that are needed, the disk itself, and all files that are not this guest's own stay as they are; and
        /// afterwards there is nothing more to do.
        #[test]
        fn what_is_needed_is_read_as_before(made in prop::collection::vec(layer(), 0..12)) {
            let (mut layers, mut chain): (Vec<Layer>, Vec<Image>) = made.into_iter().unzip();
            let needed = |layers: &[Layer], chain: &[Image]| -> Vec<Image> {
                let is_needed = |at: &usize| layers[*at].is_kept || *at + 1 == layers.len();
                (0..layers.len()).filter(is_needed).map(|at| view(chain, at)).collect()
            };
            let untouchable = |layers: &[Layer], chain: &[Image]| -> Vec<Image> {
                let below = layers.iter().rposition(|layer| layer.is_shared).map_or(0, |at| at + 1);
                let is_of_others = |at: &usize| *at < below || !layers[*at].is_own;
                (0..layers.len()).filter(is_of_others).map(|at| chain[at]).collect()
            };
            let before = (needed(&layers, &chain), untouchable(&layers, &chain));
            let top = chain.last().copied();
            for run in merges(&layers).iter().rev() {
                prop_assert!(*run.end() + 1 < layers.len());
                merge(&mut chain, &mut layers, run);
            }
            prop_assert_eq!((needed(&layers, &chain), untouchable(&layers, &chain)), before);
            prop_assert_eq!(chain.last().copied(), top);
            prop_assert!(merges(&layers).is_empty());
        }

        /// A guest that is kept at intervals has a chain that is bounded by what is kept.
        #[test]
        fn chains_of_guests_that_are_kept_at_intervals_are_bounded(
            keep in 1..6_usize,
            rounds in 1..60_u32,
        ) {
            let mut layers = vec![Layer::default()];
            let mut chain: Vec<Image> = vec![[Some(0); CLUSTERS]];
            let mut views: Vec<Image> = Vec::new();
            for round in 1..=rounds {
                // The checkpoint keeps what was the topmost, and the guest writes to a new one.
                layers.last_mut().unwrap().is_kept = true;
                views.push(view(&chain, chain.len() - 1));
                layers.push(Layer { is_own: true, ..Layer::default() });
                let mut image = [None; CLUSTERS];
                image[round as usize % CLUSTERS] = Some(round);
                chain.push(image);
                if views.len() > keep {
                    views.remove(0);
                    layers.iter_mut().find(|layer| layer.is_kept).unwrap().is_kept = false;
                    for run in merges(&layers).iter().rev() {
                        merge(&mut chain, &mut layers, run);
                    }
                }
                let kept = (0..layers.len()).filter(|at| layers[*at].is_kept);
                prop_assert_eq!(kept.map(|at| view(&chain, at)).collect::<Vec<_>>(), views.clone());
                prop_assert!(layers.len() <= keep + 3, "{} layers", layers.len());
            }
        }
    }
}

//! Engines that have queues connected in the same way, or not.

use super::*;

fn managed(network: &ModelNetwork) -> Engine {
    Engine::with(vec![network.managed_adapter_with(|_| ())], 2, VerbsOptions::default())
}

#[test]
fn two_engines_that_are_set_differently_are_told_what_to_set_alike() {
    let network = ModelNetwork::new(crate::model::Options::default());
    for (one, two) in
        [(managed(&network), Engine::new(&network, 1, 2)), (Engine::new(&network, 1, 2), managed(&network))]
    {
        let error = try_join(one, two).err().expect("they differ");
        assert!(matches!(error, JoinError::Setting { key: "transports.verbs_connect", .. }), "{error:?}");
        let words = error.to_string();
        assert!(["transports.verbs_connect", "exchange", "cm"].iter().all(|word| words.contains(word)), "{words}");
    }
    let sides = join(managed(&network), managed(&network));
    assert!(sides.iter().all(|side| side.path.contains("connected by rdma_cm")), "{}", sides[0].path);
}

//! Disruption budgets while claims are being started or moved.

use aliquot_scheduler_core::{Claim, DisruptionBudget, Event};

use crate::setting::{INFERENCE, TRAIN, World, evicted, wants};

#[test]
fn who_has_not_started_is_no_reason_to_evict_another_of_a_budget() {
    let mut world = World::new(&[1, 1]);
    world.queue("q", 2);
    let budget = DisruptionBudget { name: "b".into(), namespace: String::new(), min_available: 1 };
    world.apply(Event::BudgetChanged(budget));
    let of_budget = |priority| Claim { disruption_budget: Some("b".into()), ..wants("q", priority, 1) };
    let low = world.add("q", TRAIN, 1);
    world.run_on(low, 0, 0);
    let runs = world.claim(of_budget(TRAIN + 10));
    world.run_on(runs, 1, 0);
    let waits = world.claim(of_budget(INFERENCE));
    world.scheduler.cycle(&mut world.cluster);
    assert_eq!(world.cluster.starts_after(waits), [low]);
    world.add("q", TRAIN + 20, 1);
    let plan = world.scheduler.cycle(&mut world.cluster);
    assert_eq!(evicted(&plan), [], "no claim of the budget would be left");
}

#[test]
fn a_budget_that_a_running_claim_gets_counts_from_then_on() {
    let mut world = World::new(&[1, 1]);
    world.queue("q", 2);
    let budget = DisruptionBudget { name: "b".into(), namespace: String::new(), min_available: 1 };
    world.apply(Event::BudgetChanged(budget));
    let low = world.add("q", TRAIN, 1);
    world.run_on(low, 0, 0);
    let high = world.add("q", TRAIN + 10, 1);
    world.run_on(high, 1, 0);
    world.apply(Event::ClaimBudgetChanged(low, Some("b".into())));
    world.add("q", INFERENCE, 1);
    let plan = world.scheduler.cycle(&mut world.cluster);
    assert_eq!(evicted(&plan), [high], "the budget protects the claim of the lower priority");
    world.apply(Event::ClaimBudgetChanged(low, None));
    world.add("q", INFERENCE, 1);
    let plan = world.scheduler.cycle(&mut world.cluster);
    assert_eq!(evicted(&plan), [low], "no budget protects it any more");
}

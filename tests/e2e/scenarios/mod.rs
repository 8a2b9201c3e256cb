//! What ostrakon does in a cluster.

mod basics;
mod compare;
pub(crate) mod drains;
mod dry_run;
mod evidence;
mod exact;
mod faults;
mod hostile;
mod identity;
mod leader;
mod lifecycle;
mod likeness;
mod managers;
mod methods;
mod outages;
mod outside;
mod pauses;
mod race;
mod reload;
mod reports;
mod start;
mod stop;
mod tenants;
mod watches;

use crate::ctx::Scenario;

/// All of them; each module adds its own.
pub(crate) fn trials() -> Vec<Scenario> {
    [
        basics::trials(),
        compare::trials(),
        drains::trials(),
        exact::trials(),
        faults::trials(),
        hostile::trials(),
        identity::trials(),
        leader::trials(),
        lifecycle::trials(),
        likeness::trials(),
        dry_run::trials(),
        managers::trials(),
        methods::trials(),
        outages::trials(),
        pauses::trials(),
        race::trials(),
        reload::trials(),
        reports::trials(),
        start::trials(),
        stop::trials(),
        tenants::trials(),
        watches::trials(),
    ]
    .concat()
}

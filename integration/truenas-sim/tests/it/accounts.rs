//! Users, privileges and API keys as an administrator makes them.

use serde_json::{Value, json};
use truenas_sim::{Generation, Options, Simulator};

use crate::client::Client;

const WITH_ROLES: [Generation; 4] = [
    Generation::V25_04,
    Generation::V25_10,
    Generation::V26Beta,
    Generation::V26Rc,
];

async fn nas(generation: Generation) -> Simulator {
    Simulator::start(Options::new(generation))
        .await
        .expect("a simulator")
}

fn user(more: &Value) -> Value {
    let mut data = json!({
        "username": "csi",
        "full_name": "csi",
        "group_create": true,
        "smb": false,
        "password_disabled": true,
    });
    let more = more.as_object().cloned().unwrap_or_default();
    data.as_object_mut().expect("an object").extend(more);
    json!([data])
}

/// The first attribute and text of a refusal.
fn said(refused: Result<Value, Value>) -> (String, String) {
    let refused = refused.expect_err("refused");
    let first = &refused["data"]["extra"][0];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    (text(&first[0]), text(&first[1]))
}

#[tokio::test]
async fn a_user_has_the_roles_of_the_privilege_of_its_group() {
    for generation in WITH_ROLES {
        let nas = nas(generation).await;
        let mut root = Client::root(&nas).await;
        let made = root
            .call("user.create", user(&json!({})))
            .await
            .expect("a user");
        let key = json!([{"name": "csi", "username": "csi"}]);
        let (at, text) = said(root.call("api_key.create", key.clone()).await);
        assert_eq!(at, "api_key_create");
        assert_eq!(text, "User lacks privilege role membership.");
        let group = &made["group"]["bsdgrp_gid"];
        let privilege = json!([{
            "name": "csi",
            "local_groups": [group],
            "roles": ["SHARING_NFS_WRITE"],
            "web_shell": false,
        }]);
        root.call("privilege.create", privilege)
            .await
            .expect("a privilege");
        let made = root.call("api_key.create", key).await.expect("a key");
        let mut client = Client::connect(&nas).await;
        let login =
            json!([{"mechanism": "API_KEY_PLAIN", "username": "csi", "api_key": made["key"]}]);
        let answer = client
            .call("auth.login_ex", login)
            .await
            .expect("an answer");
        assert_eq!(answer["response_type"], "SUCCESS", "{generation}");
        let shares = client.call("sharing.nfs.query", json!([])).await;
        assert_eq!(shares, Ok(json!([])), "{generation}");
        client
            .call("sharing.smb.query", json!([]))
            .await
            .expect_err("not authorized");
    }
}

#[tokio::test]
async fn users_and_privileges_that_the_middleware_refuses_are_refused() {
    for generation in WITH_ROLES {
        let nas = nas(generation).await;
        let mut root = Client::root(&nas).await;
        for (more, at) in [
            (json!({"group": 1}), "user_create.group"),
            (json!({"smb": true}), "user_create.password_disabled"),
            (json!({"password_disabled": false}), "user_create.password"),
            (
                json!({"password": "sesame"}),
                "user_create.password_disabled",
            ),
            (json!({"home": "/root"}), "user_create.home"),
            (
                json!({"sshpubkey": "ssh-ed25519 A"}),
                "user_create.sshpubkey",
            ),
            (
                json!({"sudo_commands_nopasswd": ["zfs"]}),
                "user_create.sudo_commands_nopasswd.0",
            ),
            (json!({"username": "1csi"}), "user_create.username"),
            (json!({"username": "root"}), "user_create.username"),
            (json!({"roles": []}), "user_create.roles"),
        ] {
            let (found, text) = said(root.call("user.create", user(&more)).await);
            assert_eq!(found, at, "{generation}: {text}");
        }
        for (groups, roles, at) in [
            (json!([4711]), json!([]), "privilege_create.local_groups.0"),
            (
                json!([]),
                json!(["NO_SUCH_ROLE"]),
                "privilege_create.roles.0",
            ),
        ] {
            let data =
                json!([{"name": "a", "local_groups": groups, "roles": roles, "web_shell": false}]);
            let (found, text) = said(root.call("privilege.create", data).await);
            assert_eq!(found, at, "{generation}: {text}");
        }
    }
}

#[tokio::test]
async fn the_list_of_a_key_is_all_that_it_may_do_until_an_upgrade_revokes_it() {
    for generation in [Generation::V22_12, Generation::V24_10] {
        let nas = nas(generation).await;
        let list = json!([
            {"method": "CALL", "resource": "sharing.nfs.query"},
            {"method": "CALL", "resource": "pool.*"},
        ]);
        let made = nas.call(
            "api_key.create",
            vec![json!({"name": "csi", "allowlist": list})],
        );
        let made = made.await.expect("a key");
        let mut client = Client::connect(&nas).await;
        let login = client
            .call("auth.login_with_api_key", json!([made["key"]]))
            .await;
        assert_eq!(login, Ok(json!(true)), "{generation}");
        for allowed in ["sharing.nfs.query", "pool.dataset.query"] {
            client.call(allowed, json!([])).await.expect(allowed);
        }
        for other in ["sharing.smb.query", "auth.me", "system.version"] {
            let refused = client.call(other, json!([])).await.expect_err(other);
            assert_eq!(refused["error"], 13, "{generation}: {refused}");
        }
        nas.upgrade(Generation::V25_04);
        let mut client = Client::connect(&nas).await;
        let login = client
            .call("auth.login_with_api_key", json!([made["key"]]))
            .await;
        assert_eq!(login, Ok(json!(false)), "{generation}");
    }
}

/// Up to 24.10 a key has no user.
#[tokio::test]
async fn a_key_without_a_user_is_told_nothing_of_itself() {
    for (generation, tells) in [(Generation::V24_10, false), (Generation::V25_04, true)] {
        let nas = nas(generation).await;
        let mut client = Client::connect(&nas).await;
        let login = json!([nas.api_key()]);
        client
            .call("auth.login_with_api_key", login)
            .await
            .expect("a login");
        let me = client.call("auth.me", json!([])).await;
        assert_eq!(me.is_ok(), tells, "{generation}: {me:?}");
    }
}

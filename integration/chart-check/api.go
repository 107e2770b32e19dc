package main

import (
	"encoding/json"
	"net"
	"net/http"
	"os"
	"os/exec"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	sigsyaml "sigs.k8s.io/yaml"
)

// Runs a command of helm beside an API server that has the Secrets of a rendered file and nothing else: what `lookup` finds
// of an earlier release.
func runWithSecrets(file string, command []string) error {
	in, err := os.Open(file)
	if err != nil {
		return err
	}
	defer in.Close()
	var secrets []corev1.Secret
	err = documents(in, func(document []byte) {
		var secret corev1.Secret
		if sigsyaml.Unmarshal(document, &secret) == nil && secret.Kind == "Secret" {
			secrets = append(secrets, secret)
		}
	})
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := &http.Server{Handler: api(secrets)}
	go func() { _ = server.Serve(listener) }()
	defer server.Close()
	helm := exec.Command(command[0], command[1:]...)
	helm.Env = append(os.Environ(), "KUBECONFIG=/dev/null", "HELM_KUBEAPISERVER=http://"+listener.Addr().String())
	helm.Stdout, helm.Stderr = os.Stdout, os.Stderr
	return helm.Run()
}

func api(secrets []corev1.Secret) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/v1", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, metav1.APIResourceList{
			TypeMeta:     metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"},
			GroupVersion: "v1",
			APIResources: []metav1.APIResource{{Name: "secrets", Kind: "Secret", Namespaced: true, Verbs: metav1.Verbs{"get"}}},
		})
	})
	mux.HandleFunc("GET /api/v1/namespaces/{namespace}/secrets/{name}", func(w http.ResponseWriter, r *http.Request) {
		for _, secret := range secrets {
			if secret.Namespace == r.PathValue("namespace") && secret.Name == r.PathValue("name") {
				answer(w, http.StatusOK, secret)
				return
			}
		}
		absent(w, r)
	})
	mux.HandleFunc("/", absent)
	return mux
}

func absent(w http.ResponseWriter, _ *http.Request) {
	answer(w, http.StatusNotFound, metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure,
		Reason:   metav1.StatusReasonNotFound,
		Code:     http.StatusNotFound,
	})
}

func answer(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body)
}

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/version"
	sigsyaml "sigs.k8s.io/yaml"
)

// An API server that has the objects of a rendered file and no others, to be read: what `lookup` of helm finds of an
// earlier release.
type rendered struct {
	objects map[string]json.RawMessage
	lists   map[string]*metav1.APIResourceList
}

// Runs a command of helm beside one.
func runWithObjects(file string, command []string) error {
	in, err := os.Open(file)
	if err != nil {
		return err
	}
	defer in.Close()
	all := rendered{objects: map[string]json.RawMessage{}, lists: map[string]*metav1.APIResourceList{}}
	var failures []error
	err = documents(in, func(document []byte) { failures = append(failures, all.add(document)) })
	if err := errors.Join(append(failures, err)...); err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := &http.Server{Handler: &all}
	go func() { _ = server.Serve(listener) }()
	defer server.Close()
	folder, err := os.MkdirTemp("", "chart-check")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	address := "http://" + listener.Addr().String()
	config := filepath.Join(folder, "config")
	content := fmt.Sprintf("apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: %q}}]\ncontexts: [{name: c, context: {cluster: c}}]\ncurrent-context: c\n", address)
	if err := os.WriteFile(config, []byte(content), 0o600); err != nil {
		return err
	}
	helm := exec.Command(command[0], command[1:]...)
	helm.Env = append(os.Environ(), "KUBECONFIG="+config, "KUBECACHEDIR="+folder, "HELM_KUBEAPISERVER="+address)
	helm.Stdout, helm.Stderr = os.Stdout, os.Stderr
	return helm.Run()
}

func (r *rendered) add(document []byte) error {
	var meta metav1.PartialObjectMetadata
	if err := sigsyaml.Unmarshal(document, &meta); err != nil {
		return err
	}
	object, err := sigsyaml.YAMLToJSON(document)
	if err != nil {
		return err
	}
	folder := "/apis/" + meta.APIVersion
	if !strings.Contains(meta.APIVersion, "/") {
		folder = "/api/" + meta.APIVersion
	}
	resource := plural(meta.Kind)
	list := r.lists[folder]
	if list == nil {
		list = &metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: meta.APIVersion}
		r.lists[folder] = list
	}
	if !slices.ContainsFunc(list.APIResources, func(one metav1.APIResource) bool { return one.Name == resource }) {
		list.APIResources = append(list.APIResources, metav1.APIResource{
			Name: resource, SingularName: strings.ToLower(meta.Kind), Kind: meta.Kind, Namespaced: meta.Namespace != "",
			Verbs: metav1.Verbs{"get"},
		})
	}
	if meta.Namespace != "" {
		folder += "/namespaces/" + meta.Namespace
	}
	r.objects[folder+"/"+resource+"/"+meta.Name] = object
	return nil
}

func plural(kind string) string {
	word := strings.ToLower(kind)
	switch {
	case strings.HasSuffix(word, "ss"):
		return word + "es"
	case strings.HasSuffix(word, "y"):
		return strings.TrimSuffix(word, "y") + "ies"
	default:
		return word + "s"
	}
}

func (r *rendered) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	path := request.URL.Path
	if object, there := r.objects[path]; there {
		answer(w, http.StatusOK, object)
	} else if list, there := r.lists[path]; there {
		answer(w, http.StatusOK, list)
	} else if path == "/version" {
		answer(w, http.StatusOK, version.Info{Major: "1", Minor: "35", GitVersion: "v1.35.0"})
	} else if path == "/api" {
		answer(w, http.StatusOK, metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions", APIVersion: "v1"}, Versions: []string{"v1"}})
	} else if path == "/apis" {
		answer(w, http.StatusOK, r.groups())
	} else {
		answer(w, http.StatusNotFound, metav1.Status{
			TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
			Status:   metav1.StatusFailure,
			Reason:   metav1.StatusReasonNotFound,
			Code:     http.StatusNotFound,
		})
	}
}

func (r *rendered) groups() metav1.APIGroupList {
	groups := metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}}
	for _, list := range r.lists {
		if group, name, grouped := strings.Cut(list.GroupVersion, "/"); grouped {
			one := metav1.GroupVersionForDiscovery{GroupVersion: list.GroupVersion, Version: name}
			groups.Groups = append(groups.Groups, metav1.APIGroup{
				Name: group, Versions: []metav1.GroupVersionForDiscovery{one}, PreferredVersion: one,
			})
		}
	}
	return groups
}

func answer(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body)
}

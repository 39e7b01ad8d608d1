import { useAgent } from "@copilotkit/react-core/v2";
import { Beside } from "../chat.jsx";

// What the agent begins with, too.
const PANTRY = { title: "Tomato soup", servings: 2, ingredients: ["4 tomatoes", "1 onion", "200 ml cream"] };

export function RecipePage(props) {
  const { agent } = useAgent();
  const recipe = agent.state?.title ? agent.state : PANTRY;
  const edit = (changes) => agent.setState({ ...recipe, ...changes });
  return (
    <Beside {...props}>
      <form className="recipe" data-testid="recipe" onSubmit={(event) => event.preventDefault()}>
        <label>Dish <input value={recipe.title} onChange={(event) => edit({ title: event.target.value })} /></label>
        <label>
          Servings
          <input type="number" min="1" max="20" value={recipe.servings} onChange={(event) => edit({ servings: Number(event.target.value) })} />
        </label>
        <fieldset>
          <legend>Ingredients</legend>
          {recipe.ingredients.map((item, index) => (
            <input
              key={index} aria-label={`Ingredient ${index + 1}`} value={item}
              onChange={(event) => edit({ ingredients: recipe.ingredients.with(index, event.target.value) })}
            />
          ))}
        </fieldset>
        <button type="button" className="quiet" onClick={() => edit({ ingredients: [...recipe.ingredients, ""] })}>Add one</button>
      </form>
    </Beside>
  );
}
